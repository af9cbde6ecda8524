"""SGLang, from 0.4.6 on: how a release fills in its arguments, sizes its pools, and what it refuses."""
