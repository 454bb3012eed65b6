"""Network slots: one namespace, tap and address per sandbox."""
