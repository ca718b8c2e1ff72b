// How code becomes a script whose declarations survive it.
//
// `const`, `let` and `class` at the top level become `var`, so that later code can declare them again. Code with a
// top-level `await` or `import` becomes the body of an async function that assigns to properties of `globalThis`.
// Whatever is replaced keeps its lines, and its columns where that is possible.

const acorn = require("internal/deps/acorn/acorn/dist/acorn");

const SYNTAX = {
  ecmaVersion: "latest",
  sourceType: "script",
  allowAwaitOutsideFunction: true,
  allowImportExportEverywhere: true,
  allowHashBang: true,
};
const FUNCTIONS = new Set(["FunctionDeclaration", "FunctionExpression", "ArrowFunctionExpression", "StaticBlock"]);

// Returns the script for code, with the names it declares at the top level, the number of columns before its first
// line, whether it is the body of an async function, and whether its value is that of its last statement.
function scriptOf(code) {
  if (code.startsWith("#!")) code = `//${code.slice(2)}`;
  let program;
  try {
    program = acorn.parse(code, SYNTAX);
  } catch {
    const literal = objectLiteral(code);
    if (literal) return literal;
    // The interpreter may know more syntax, and has better messages.
    const isAsync = /\b(await|import)\b/.test(code);
    if (!isAsync || compiles(code)) return { source: code, names: [], before: 0, isAsync: false, hasValue: true };
    return { source: `(async () => {${code}\n})()`, names: [], before: 14, isAsync, hasValue: false };
  }
  const { body } = program;
  if (body.length === 1 && body[0].type === "BlockStatement" && body[0].start === code.search(/\S/)) {
    const literal = objectLiteral(code);
    if (literal) return literal;
  }
  const hasImport = body.some(({ type }) => type === "ImportDeclaration");
  const isAsync = hasImport || (code.includes("await") && [...nodesOutsideFunctions(program)].some(isAwait));
  const edits = [];
  const names = new Set();
  for (const statement of body) editStatement(code, statement, isAsync, edits, names);
  if (isAsync) {
    for (const node of nodesOutsideFunctions(program)) {
      if (node.kind === "var" && !body.includes(node)) editNestedVar(node, edits, names);
    }
  }
  const last = body.at(-1);
  const value = last?.type === "ExpressionStatement" ? last.expression : exportedValue(last);
  const hasValue = Boolean(value);
  let prefix = "";
  let suffix = "";
  if (isAsync) {
    prefix = "(async () => {";
    suffix = "\n})()";
    const functions = body.map(({ declaration, ...statement }) => declaration ?? statement).filter(isFunction);
    const assigned = functions.map(({ id }) => `globalThis.${id.name} = ${id.name};`).join(" ");
    const directive = body.findLast(({ directive }) => directive);
    if (directive) edits.push({ at: directive.end, length: 0, text: `;${assigned}` });
    else prefix += assigned;
    if (hasValue) {
      if (body.length === 1) prefix += "return (";
      else edits.push({ at: body.at(-2).end, length: 0, text: ";return (" });
      edits.push({ at: value.end, length: 0, text: ")" });
    }
  }
  return { source: prefix + edited(code, edits) + suffix, names: [...names], before: prefix.length, isAsync, hasValue };
}

// Returns the script for code that is an object literal and not a block; `undefined` for other code.
function objectLiteral(code) {
  if (!/^\s*\{[^]*\}\s*$/.test(code)) return undefined;
  try {
    acorn.parseExpressionAt(`(${code}\n)`, 0, { ecmaVersion: "latest" });
  } catch {
    return undefined;
  }
  return { source: `(${code}\n)`, names: [], before: 1, isAsync: false, hasValue: true };
}

// Returns whether the interpreter accepts code as a script.
function compiles(code) {
  try {
    return Boolean(new vm.Script(code));
  } catch {
    return false;
  }
}

// Returns the expression that is exported by default; `undefined` for any other statement.
function exportedValue(statement) {
  if (statement?.type !== "ExportDefaultDeclaration") return undefined;
  return /Declaration$/.test(statement.declaration.type) ? undefined : statement.declaration;
}

function isFunction(statement) {
  return statement.type === "FunctionDeclaration" && statement.id;
}

function isAwait(node) {
  return node.type === "AwaitExpression" || (node.type === "ForOfStatement" && node.await);
}

// Iterates over the nodes that belong to no function. It keeps its own stack, because code can be nested deeply.
function* nodesOutsideFunctions(program) {
  const stack = [program];
  while (stack.length > 0) {
    const node = stack.pop();
    yield node;
    for (const key in node) {
      const child = node[key];
      if (key === "parent" || child === null || typeof child !== "object") continue;
      for (const inner of Array.isArray(child) ? child : [child]) {
        if (typeof inner?.type !== "string" || FUNCTIONS.has(inner.type)) continue;
        inner.parent = node;
        stack.push(inner);
      }
    }
  }
}

// Notes the edits of a statement at the top level, and the names that it declares.
function editStatement(code, statement, isAsync, edits, names) {
  const blank = (start, end) => {
    edits.push({ at: start, length: end - start, text: code.slice(start, end).replace(/[^\n]/g, " ") });
  };
  switch (statement.type) {
    case "VariableDeclaration":
      return editVariables(statement, isAsync, edits, names);
    case "ClassDeclaration":
      names.add(statement.id.name);
      edits.push({ at: statement.start, length: 0, text: `${isAsync ? ";" : "var "}${statement.id.name} = ` });
      edits.push({ at: statement.end, length: 0, text: ";" });
      return undefined;
    case "FunctionDeclaration":
      names.add(statement.id.name);
      return undefined;
    case "ImportDeclaration":
      return editImport(code, statement, edits, names);
    case "ExportDefaultDeclaration":
      blank(statement.start, statement.declaration.start);
      if (statement.declaration.id) editStatement(code, statement.declaration, isAsync, edits, names);
      return undefined;
    case "ExportNamedDeclaration":
      if (!statement.declaration) return blank(statement.start, statement.end);
      blank(statement.start, statement.declaration.start);
      return editStatement(code, statement.declaration, isAsync, edits, names);
    case "ExportAllDeclaration":
      return blank(statement.start, statement.end);
  }
  return undefined;
}

// Turns a declaration of variables into assignments, or into `var`.
function editVariables(statement, isAsync, edits, names) {
  const { kind, start, declarations } = statement;
  if (!["var", "let", "const"].includes(kind)) return;
  // A semicolon, because the line before may not end with one.
  const keyword = isAsync ? ";(".padStart(kind.length) : "var".padEnd(kind.length);
  edits.push({ at: start, length: kind.length, text: keyword });
  for (const { id, init } of declarations) {
    for (const name of patternNames(id)) names.add(name);
    if (!init && kind === "let") edits.push({ at: id.end, length: 0, text: " = void 0" });
  }
  if (isAsync) edits.push({ at: declarations.at(-1).end, length: 0, text: ")" });
}

// Turns a `var` within another statement into assignments.
function editNestedVar(node, edits, names) {
  for (const { id } of node.declarations) {
    for (const name of patternNames(id)) names.add(name);
  }
  const { parent } = node;
  const isHead = /^For/.test(parent.type) && parent.body !== node;
  const isAlone = !isHead && !["BlockStatement", "SwitchCase"].includes(parent.type);
  if (isHead && /^For(In|Of)/.test(parent.type)) {
    edits.push({ at: node.start, length: 3, text: "   " });
  } else {
    edits.push({ at: node.start, length: 3, text: isAlone || isHead ? "  (" : " ;(" });
    edits.push({ at: node.declarations.at(-1).end, length: 0, text: ")" });
  }
}

// Turns an `import` into a dynamic one.
function editImport(code, statement, edits, names) {
  const { start, end, specifiers, source, attributes } = statement;
  const options = attributes?.length
    ? `, { with: { ${attributes.map(({ start, end }) => code.slice(start, end)).join(", ")} } }`
    : "";
  const module = `await import(${source.raw}${options})`;
  const space = specifiers.find(({ type }) => type === "ImportNamespaceSpecifier");
  const imported = [];
  for (const specifier of specifiers) {
    names.add(specifier.local.name);
    if (specifier === space) continue;
    const from = specifier.imported;
    const name = !from ? "default" : from.type === "Literal" ? from.raw : from.name;
    imported.push(`${name}: ${specifier.local.name}`);
  }
  let text = `;${module};`;
  if (space) text = `;(${space.local.name} = ${module});`;
  if (imported.length > 0) text = `;({ ${imported.join(", ")} } = ${space ? `(${space.local.name} = ${module})` : module});`;
  const lines = code.slice(start, end).split("\n").length - 1;
  edits.push({ at: start, length: end - start, text: text + "\n".repeat(lines) });
}

// Returns the names that a pattern binds.
function patternNames(pattern) {
  switch (pattern?.type) {
    case "Identifier":
      return [pattern.name];
    case "ObjectPattern":
      return pattern.properties.flatMap((property) => patternNames(property.value ?? property.argument));
    case "ArrayPattern":
      return pattern.elements.flatMap(patternNames);
    case "AssignmentPattern":
      return patternNames(pattern.left);
    case "RestElement":
      return patternNames(pattern.argument);
  }
  return [];
}

// Returns code after edits.
function edited(code, edits) {
  const pieces = [];
  let from = 0;
  edits.sort((a, b) => a.at - b.at);
  for (const { at, length, text } of edits) {
    pieces.push(code.slice(from, at), text);
    from = at + length;
  }
  pieces.push(code.slice(from));
  return pieces.join("");
}
