"""Changes that help: fixes of a plan that does not fit, variations of a setting, sweeps over models and cards."""
