"""The loop over items, and what it needs: the same in every process, wherever a run takes place.

In: items, a function bound to its env, a `Policy`. Out: a `Block` of results and failures (`loop.run_items`).

How work is cut into chunks (`work`), called step by step (`loop`, `steps`), watched (`watch`) and seeded
(`seeding`); what becomes of items that raise, and
results as lines (`settling`); exceptions that travel (`exceptions`, `pickling`).
"""
