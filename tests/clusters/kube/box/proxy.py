"""Forwards the address of each service to a pod that is ready, in place of kube-proxy."""

import asyncio
import itertools
import subprocess

from tests.clusters.kube.box.api import get

COUNT = itertools.count()


async def pipe(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


def handler(key, backends):
    async def handle(reader, writer):
        ready = backends.get(key)
        try:
            if not ready:
                raise ConnectionRefusedError(key)
            there = await asyncio.open_connection(*ready[next(COUNT) % len(ready)])
        except OSError:
            writer.close()
            return
        await asyncio.gather(pipe(reader, there[1]), pipe(there[0], writer))

    return handle


def wanted():
    """Return the addresses of pods that are ready, by the service's address and port."""
    ends = {(e["metadata"]["namespace"], e["metadata"]["name"]): e for e in get("/api/v1/endpoints")["items"]}
    found = {}
    for service in get("/api/v1/services")["items"]:
        address, meta = service["spec"].get("clusterIP"), service["metadata"]
        if address in (None, "None"):
            continue
        subsets = ends.get((meta["namespace"], meta["name"]), {}).get("subsets") or []
        for port in service["spec"]["ports"]:
            found[(address, port["port"])] = [
                (each["ip"], other["port"])
                for subset in subsets
                for each in subset.get("addresses", [])
                for other in subset["ports"]
                if other.get("name") == port.get("name")
            ]
    return found


def own_address(address):
    """Make a service's address one of this machine's; it may be already, by another port."""
    subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], capture_output=True, check=False)


async def main():
    servers, backends = {}, {}
    while True:
        try:
            found = await asyncio.to_thread(wanted)
            backends.clear()
            backends.update(found)
            for key in set(found) - set(servers):
                await asyncio.to_thread(own_address, key[0])
                servers[key] = await asyncio.start_server(handler(key, backends), *key)
            for key in set(servers) - set(found):
                servers.pop(key).close()
        except OSError as error:
            print("proxy", repr(error), flush=True)
        await asyncio.sleep(0.3)


if __name__ == "__main__":
    asyncio.run(main())
