"""The loop over items, and what it needs: the same in every process, wherever a run takes place.

How work is cut into chunks (`work`), called step by step and made lines (`loop`), watched (`watch`) and seeded
(`seeding`); exceptions that travel (`exceptions`, `pickling`).
"""
