"""What a topology was chosen for, held against what its servers count: assumptions, figures, verdicts, advice."""
