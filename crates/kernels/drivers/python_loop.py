# loop
# Runs coroutines of the code.
import asyncio

loop = None


def run(coroutine):
    """Runs a coroutine on the loop that all of them share; cancels it at an interrupt."""
    global loop
    if loop is None or loop.is_closed():
        loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    task = loop.create_task(coroutine)
    try:
        return loop.run_until_complete(task)
    except BaseException:
        if not task.done():
            task.cancel()
            try:
                loop.run_until_complete(task)
            except BaseException:
                pass
        raise
