// An agent of the AI SDK whose tool runs code in a sandbox. TIDEBOX_URL names the server.

import { type LanguageModel, tool, ToolLoopAgent } from "ai";
import { MockLanguageModelV4 } from "ai/test";
import { Sandbox } from "tidebox";
import { z } from "zod";

const SALES = `
sales = {"Berlin": [18, 22, 20], "Lisbon": [19, 21, 17]}
averages = {city: sum(days) / len(days) for city, days in sales.items()}
averages
`;
const FIGURE = `
import matplotlib.pyplot as plt
plt.bar(list(averages), list(averages.values()))
plt.show()
`;

function codeRunner(sandbox: Sandbox) {
  return tool({
    description:
      "Runs Python and returns its output, the value of its last expression, and its figures. " +
      "Variables and imports stay for the next call.",
    inputSchema: z.object({ code: z.string() }),
    execute: async ({ code }, { abortSignal }) => {
      const execution = await sandbox.runCode(code, { timeout: 60, ...(abortSignal && { signal: abortSignal }) });
      const { results, error, outcome } = execution;
      const values = results.filter(({ png }) => !png).map(({ text }) => text ?? "");
      let text = execution.stdout + values.join("\n");
      if (error) text += error.traceback || error.value;
      if (outcome !== "ok") text += `\noutcome: ${outcome}`;
      return { text: text || "(no text)", figures: results.flatMap(({ png }) => png ?? []) };
    },
    toModelOutput: ({ output: { text, figures } }) => ({
      type: "content",
      value: [
        { type: "text", text },
        ...figures.map((data) => ({
          type: "file" as const,
          mediaType: "image/png",
          data: { type: "data" as const, data },
        })),
      ],
    }),
  });
}

/** Says what a model would say. */
function scriptedModel(): LanguageModel {
  const usage = {
    inputTokens: { total: 0, noCache: 0, cacheRead: 0, cacheWrite: 0 },
    outputTokens: { total: 0, text: 0, reasoning: 0 },
  };
  const call = (toolCallId: string, code: string) => ({
    content: [{ type: "tool-call" as const, toolCallId, toolName: "runCode", input: JSON.stringify({ code }) }],
    finishReason: { unified: "tool-calls" as const, raw: undefined },
    usage,
    warnings: [],
  });
  const answer = {
    content: [{ type: "text" as const, text: "Berlin sold 20 a day, Lisbon 19." }],
    finishReason: { unified: "stop" as const, raw: undefined },
    usage,
    warnings: [],
  };
  return new MockLanguageModelV4({ doGenerate: [call("call-1", SALES), call("call-2", FIGURE), answer] });
}

// For a real model, set AI_GATEWAY_API_KEY and write: const model = "anthropic/claude-sonnet-5.5";
const model = scriptedModel();

const sandbox = await Sandbox.create();
try {
  const agent = new ToolLoopAgent({
    model,
    instructions: "Compute with runCode, never in your head.",
    tools: { runCode: codeRunner(sandbox) },
  });
  const { steps, text } = await agent.generate({ prompt: "Which city sells more? Draw it." });
  for (const { output } of steps.flatMap((step) => step.staticToolResults)) {
    console.log("runCode:", output.text, ...output.figures.map(() => "[figure]"));
  }
  console.log(text);
} finally {
  await sandbox.destroy();
}
