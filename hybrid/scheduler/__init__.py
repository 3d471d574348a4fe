"""Which requests run next and with which memory: order, readiness, admission, plan, commit. No torch in here."""
