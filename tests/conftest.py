"""What every test shares: property tests are judged by what they find, never by how long a busy machine takes."""

import functools

from hypothesis import settings
from streamlit.components.v2 import manifest_scanner

settings.register_profile("states", deadline=None)
settings.load_profile("states")

# AppTest starts Streamlit anew for every run, which reads the metadata of each installed package to look for
# components: three quarters of the time of a test, for an answer that is the same each time.
manifest_scanner.scan_component_manifests = functools.cache(manifest_scanner.scan_component_manifests)
