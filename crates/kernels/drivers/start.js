// Reads the driver and runs it.
{
  const { readSync } = require("fs");
  const bytes = (count) => {
    const buffer = Buffer.alloc(count);
    for (let at = 0; at < count; ) {
      const read = readSync(4, buffer, at, count - at);
      if (read === 0) process.exit(1);
      at += read;
    }
    return buffer.toString();
  };
  let head = "";
  while (!head.endsWith("\n")) head += bytes(1);
  const [marker, length] = head.split(" ");
  const driver = require("vm").compileFunction(bytes(Number(length)), ["marker", "require", "load"], {
    filename: "tidebox:kernel",
  });
  driver(marker, require, (specifier, options) => import(specifier, options));
}
