/** The tools of the chat graph: one harmless, one that asks a person before it acts. */
import { tool } from '@langchain/core/tools';
import { interrupt } from '@langchain/langgraph';
import { z } from 'zod';
import { calculate, ExpressionError } from './calculator.ts';

const calculator = tool(
  ({ expression }) => {
    try {
      return String(calculate(expression));
    } catch (error) {
      if (error instanceof ExpressionError) return `I cannot calculate that. ${error.message}`;
      throw error;
    }
  },
  {
    name: 'calculate',
    description: 'Calculates an arithmetic expression with + - * / % ^ and parentheses.',
    schema: z.object({ expression: z.string().describe('for example (3 + 4) * 2.5') }),
  },
);

const emailSchema = z.object({ to: z.string(), subject: z.string(), body: z.string() });
type Email = z.infer<typeof emailSchema>;

const emailSender = tool(
  (email) => {
    const decision = readDecision(
      interrupt({ action: 'send_email', args: email, question: `Send this e-mail to ${email.to}?`, answers: ANSWERS }),
      email,
    );
    if (decision.kind === 'rejected') return `Not sent: the person said no.${decision.reason}`;
    const { to, subject } = decision.email;
    return `Recorded for ${to} with the subject “${subject}”. (This server sends no real mail.)`;
  },
  {
    name: 'send_email',
    description: 'Sends an e-mail. A person is asked first and may change it or say no.',
    schema: emailSchema,
  },
);

export const CHAT_TOOLS = [calculator, emailSender];

/** What a person may answer; shown with the question. */
const ANSWERS = ['approve', 'reject', 'edit'];

type Decision = { kind: 'approved'; email: Email } | { kind: 'rejected'; reason: string };

/** Anything that is not clearly a yes is a no. */
const answerSchema = z.union([
  z.union([z.literal(true), z.enum(['approve', 'yes'])]).transform(() => ({ action: 'approve' as const })),
  z.object({ action: z.literal('approve') }),
  z.object({ action: z.literal('edit'), args: emailSchema.partial() }),
  z.object({ action: z.literal('reject'), reason: z.string().optional() }),
]);

/** Reads a person's answer: true, "approve" or {action: approve | reject | edit, args?, reason?}. */
function readDecision(answer: unknown, email: Email): Decision {
  const read = answerSchema.safeParse(answer);
  if (!read.success) return { kind: 'rejected', reason: '' };
  const decision = read.data;
  if (decision.action === 'reject') return { kind: 'rejected', reason: decision.reason ? ` ${decision.reason}` : '' };
  if (decision.action === 'approve') return { kind: 'approved', email };
  const { to = email.to, subject = email.subject, body = email.body } = decision.args;
  return { kind: 'approved', email: { to, subject, body } };
}
