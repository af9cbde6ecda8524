"""The JSON contract, answers: a plan as the result that scripts read. Requests are read in `kvcore.wire`."""
