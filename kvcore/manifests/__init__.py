"""Files that people deploy, read by their structure: each workload with its engine, model, flags, card and limits."""
