from e2b_code_interpreter import Sandbox

with Sandbox.create(envs={"COLOR": "red"}) as sandbox:
    sandbox.run_code("x = 1")
    execution = sandbox.run_code("x += 1; x")
    print(execution.text, execution.execution_count)
    said = []
    loud = sandbox.run_code(
        "import os, sys; print(os.environ['COLOR'], file=sys.stderr); print('hello')",
        on_stdout=lambda message: said.append(message.line),
        envs={"COLOR": "blue"},
    )
    print("".join(said).strip(), loud.logs.stderr[0].strip())
    failed = sandbox.run_code("1 / 0")
    print(failed.error.name, failed.error.value)
    context = sandbox.create_code_context(cwd="/tmp")
    print(sandbox.run_code("import os; os.getcwd()", context=context).text)
    print(sandbox.run_code("const n = 41; n + 1", language="js").text)
    print(sandbox.run_code("echo $COLOR", language="bash").logs.stdout[0].strip())
    shown = sandbox.run_code("display({'text/html': '<b>hi</b>'}, raw=True)").results[0]
    print(shown.html, bool(shown.is_main_result))
