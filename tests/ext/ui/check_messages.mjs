// Validates the `UIMessage`s on standard input as the AI SDK does, and prints what it would send to a model.
import { convertToModelMessages, safeValidateUIMessages } from 'ai';
import { text } from 'node:stream/consumers';
import { isDeepStrictEqual } from 'node:util';

const messages = JSON.parse(await text(process.stdin));
const found = await safeValidateUIMessages({ messages });
if (!found.success) {
  console.log(JSON.stringify({ error: String(found.error).slice(0, 2000) }));
} else {
  const kept = isDeepStrictEqual(JSON.parse(JSON.stringify(found.data)), messages);
  console.log(JSON.stringify({ kept, model: await convertToModelMessages(found.data) }));
}
