"""``edge-infer report``: tables, plots and pages made from artifacts alone."""
