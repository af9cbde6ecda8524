"""Why a plan has these figures: formulas, lessons, the reference."""
