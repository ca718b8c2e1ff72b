import os
import tempfile

from e2b import Sandbox, Template

folder = tempfile.mkdtemp()
os.chdir(folder)
os.makedirs("src")
with open("src/hello.txt", "w") as file:
    file.write("hello")

template = (
    Template(file_context_path=folder)
    .from_template("base")
    .set_envs({"NAME": "tide"})
    .set_workdir("/home/user/app")
    .copy("src", ".")
    .run_cmd("echo $NAME > name.txt")
    .set_start_cmd("cat hello.txt > started.txt; sleep 1000", "test -s started.txt")
)
Template.build(template, alias="greeter", cpu_count=1, memory_mb=256)
sandbox = Sandbox.create("greeter")
print(sandbox.commands.run("cat started.txt name.txt; pwd; echo $NAME").stdout)
sandbox.kill()
