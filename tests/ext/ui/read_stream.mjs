// Reads streams from standard input as the AI SDK's transport or AG-UI's agent does, and prints what a page then has.
import { HttpAgent } from '@ag-ui/client';
import { DefaultChatTransport, readUIMessageStream } from 'ai';
import { text } from 'node:stream/consumers';

const given = JSON.parse(await text(process.stdin));
const headers = { 'content-type': 'text/event-stream' };
const respond = async () => new Response(given.stream, { headers });

async function aiSDK() {
  const transport = new DefaultChatTransport({ fetch: respond });
  const chunks = await transport.sendMessages({ chatId: 't1', messages: [], trigger: 'submit-message' });
  const errors = [];
  const states = readUIMessageStream({ message: given.message, stream: chunks, onError: (error) => errors.push(String(error)) });
  let message = given.message ?? null;
  for await (message of states);
  return { message, errors };
}

async function agUI() {
  globalThis.fetch = respond;
  const agent = new HttpAgent({ url: 'http://agent.example', threadId: 't1', initialMessages: given.messages ?? [] });
  const errors = [];
  let outcome = null;
  await agent
    .runAgent({ runId: 'run' }, {
      onRunFinishedEvent: ({ event }) => { outcome = event.outcome; },
      onRunErrorEvent: ({ event }) => { errors.push(event.message); },
    })
    .catch((error) => errors.push(String(error)));
  return { messages: agent.messages, outcome, errors };
}

console.log(JSON.stringify(given.format === 'ag-ui' ? await agUI() : await aiSDK()));
