"""What serves users: a run folder, lines in and lines out, scores, the export to CTranslate2."""
