"""``edge-infer grid``: arms measured in turn, pass by pass, on CPUs that nobody else uses."""
