"""Workloads: which requests come when. Read from traces or drawn; nothing here knows models, pools or the scheduler."""
