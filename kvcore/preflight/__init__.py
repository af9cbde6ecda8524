"""Files that people deploy, judged before they start: outcomes, limits that contradict, patches, upgrades."""
