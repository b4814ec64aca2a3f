"""One update: from a batch to a better policy, better critics and the metrics of the iteration."""
