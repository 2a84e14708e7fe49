// Uses a chat as a page with the AI SDK does: the steps on standard input, one after the other; prints what it shows.
import {
  AbstractChat,
  DefaultChatTransport,
  lastAssistantMessageIsCompleteWithApprovalResponses as isDecided,
  lastAssistantMessageIsCompleteWithToolCalls as isComplete,
} from 'ai';
import { randomUUID } from 'node:crypto';
import { text } from 'node:stream/consumers';

const { api, steps, messages = [] } = JSON.parse(await text(process.stdin));
const state = {
  status: 'ready',
  error: undefined,
  messages,
  pushMessage: (message) => { state.messages = [...state.messages, message]; },
  popMessage: () => { state.messages = state.messages.slice(0, -1); },
  replaceMessage: (at, message) => { state.messages = state.messages.with(at, message); },
  snapshot: structuredClone,
};
class Page extends AbstractChat {}
const errors = [];
let finished = () => {};
const chat = new Page({
  id: 't1',
  state,
  transport: new DefaultChatTransport({ api, headers: () => ({ 'x-request-id': randomUUID() }) }),
  onError: (error) => errors.push(String(error)),
  onFinish: () => finished(),
  sendAutomaticallyWhen: (options) => isDecided(options) || isComplete(options),
});
const calls = () => chat.lastMessage.parts.filter((part) => part.toolCallId);
const doing = {
  send: (said) => chat.sendMessage({ text: said }),
  edit: (said) => chat.sendMessage({ text: said, messageId: chat.messages.findLast((one) => one.role === 'user').id }),
  regenerate: () => chat.regenerate(),
  resume: () => chat.resumeStream(),
  approve: async (approved) => {
    const over = new Promise((resolve) => { finished = resolve; });
    await chat.addToolApprovalResponse({ id: calls().findLast((part) => part.approval).approval.id, approved });
    await over;
  },
  give: async (output) => {
    const over = new Promise((resolve) => { finished = resolve; });
    const part = calls().findLast((one) => one.state === 'input-available');
    await chat.addToolOutput({ tool: part.type.slice(5), toolCallId: part.toolCallId, output });
    await over;
  },
};
const shown = [];
for (const [name, value] of steps) {
  await doing[name](value);
  shown.push(chat.messages.map((message) => [
    message.role,
    ...message.parts.filter((part) => part.type !== 'step-start').map((part) => part.text ?? part.state),
  ]));
}
console.log(JSON.stringify({ shown, errors, messages: chat.messages }));
