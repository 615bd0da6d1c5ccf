// Scripted conversations with each client package of JavaScript, against a real server.
// Run by run.py: BASE_URL and MODEL come from the environment, the package from the arguments.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const { BASE_URL, MODEL, PACKAGES } = process.env;
const require = createRequire(`${PACKAGES}/package.json`);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const messages = [{ role: "user", content: "What is the capital of France?" }];

async function withOpenai() {
  const { default: OpenAI } = await load("openai");
  const client = new OpenAI({ baseURL: BASE_URL, apiKey: "none", maxRetries: 0 });
  const options = { model: MODEL, messages, temperature: 0, max_tokens: 24 };
  const whole = await client.chat.completions.create({ ...options, logprobs: true, top_logprobs: 2 });
  const text = whole.choices[0].message.content;
  assert.match(text, /Paris/);
  assert.equal(whole.choices[0].logprobs.content[0].top_logprobs.length, 2);
  let streamed = "";
  let usage = null;
  const stream = await client.chat.completions.create({
    ...options, stream: true, stream_options: { include_usage: true },
  });
  for await (const chunk of stream) {
    streamed += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(streamed, text);
  assert.deepEqual(usage, whole.usage);
  const schema = {
    type: "object", properties: { city: { enum: ["Paris", "Rome"] } }, required: ["city"],
    additionalProperties: false,
  };
  const formed = await client.chat.completions.create({
    ...options, response_format: { type: "json_schema", json_schema: { name: "city", schema } },
  });
  assert.ok(["Paris", "Rome"].includes(JSON.parse(formed.choices[0].message.content).city));
  await assert.rejects(
    client.chat.completions.create({ ...options, temperature: 9 }),
    (error) => error.status === 400 && error.param === "temperature",
  );
}

async function withAi() {
  const { generateText, streamText, generateObject } = await load("ai");
  const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
  const { z } = await load("zod");
  const provider = createOpenAICompatible({
    name: "headrace", baseURL: BASE_URL, includeUsage: true, supportsStructuredOutputs: true,
  });
  const options = {
    model: provider(MODEL), prompt: messages[0].content, temperature: 0, maxOutputTokens: 24,
  };
  const { text, usage } = await generateText(options);
  assert.match(text, /Paris/);
  assert.ok(usage.outputTokens > 0);
  let streamed = "";
  for await (const part of streamText(options).textStream) streamed += part;
  assert.equal(streamed, text);
  const schema = z.object({ city: z.enum(["Paris", "Rome"]) });
  const { object } = await generateObject({ ...options, schema });
  assert.ok(["Paris", "Rome"].includes(object.city));
}

const weatherQuestion = "What is the weather in Paris?";

async function toolsWithOpenai() {
  const { default: OpenAI } = await load("openai");
  const client = new OpenAI({ baseURL: BASE_URL, apiKey: "none", maxRetries: 0 });
  const parameters = {
    type: "object", properties: { city: { enum: ["Paris", "Rome", "Oslo"] } },
    required: ["city"], additionalProperties: false,
  };
  const options = {
    model: MODEL, messages: [{ role: "user", content: weatherQuestion }], temperature: 0,
    max_tokens: 64, tool_choice: "required",
    tools: [{ type: "function", function: { name: "get_weather", parameters } }],
  };
  const whole = await client.chat.completions.create(options);
  const [call] = whole.choices[0].message.tool_calls;
  assert.deepEqual(JSON.parse(call.function.arguments), { city: "Paris" });
  assert.equal(whole.choices[0].finish_reason, "tool_calls");
  const streamed = await client.chat.completions.stream(options).finalChatCompletion();
  const [again] = streamed.choices[0].message.tool_calls;
  assert.equal(again.function.arguments, call.function.arguments);
}

async function toolsWithAi() {
  const { generateText, tool } = await load("ai");
  const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
  const { z } = await load("zod");
  const provider = createOpenAICompatible({ name: "headrace", baseURL: BASE_URL });
  const asked = [];
  const weather = tool({
    description: "The weather of a city.",
    inputSchema: z.object({ city: z.enum(["Paris", "Rome", "Oslo"]) }),
    execute: async ({ city }) => { asked.push(city); return "Sunny, 21 degrees."; },
  });
  const { toolCalls } = await generateText({
    model: provider(MODEL), prompt: weatherQuestion, temperature: 0, maxOutputTokens: 64,
    tools: { get_weather: weather }, toolChoice: "required",
  });
  assert.equal(toolCalls[0].toolName, "get_weather");
  assert.deepEqual(asked, ["Paris"]);
}

const conversations = {
  talk: { openai: withOpenai, ai: withAi },
  tools: { openai: toolsWithOpenai, ai: toolsWithAi },
};
await conversations[process.argv[3]][process.argv[2]]();
