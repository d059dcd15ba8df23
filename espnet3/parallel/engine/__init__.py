"""The loop over items, and what it needs: the same in every process, wherever a run takes place.

How work is cut into chunks (`work`), called step by step (`loop`), watched (`watch`) and seeded (`seeding`); what
becomes of steps that raise, and results as lines (`settling`); exceptions that travel (`exceptions`, `pickling`).
"""
