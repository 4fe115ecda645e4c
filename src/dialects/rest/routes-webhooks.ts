/** What became of the webhooks of one's runs, and another try for those that were given up. */
import { z } from 'zod';
import type { DialectDeps } from '../dialect.ts';
import { type RestApp, refused } from './route.ts';
import { deliveriesQuery, idParams, uuidOr } from './wire.ts';

const deliveryView = z.object({
  id: z.string().describe('What the receiver gets as webhook-id, at every attempt.'),
  run_id: z.string(),
  url: z.string().nullable(),
  status: z.enum(['pending', 'delivered', 'dead']),
  attempts: z.number(),
  last_error: z.string().nullable(),
  created_at: z.string(),
  next_attempt_at: z.string().nullable(),
  ended_at: z.string().nullable(),
});
const pageView = z.object({ deliveries: z.array(deliveryView), next_cursor: z.string().nullable() });
const requeuedView = z.object({
  delivery: deliveryView,
  requeued: z.boolean().describe('False when it had not been given up; it is left as it is.'),
});

export function addWebhookRoutes(app: RestApp, { runs }: DialectDeps): void {
  app.route({
    method: 'GET',
    url: '/webhooks',
    schema: {
      summary: 'List deliveries, newest first',
      querystring: deliveriesQuery,
      response: { 200: pageView, ...refused },
    },
    handler: (request) => runs.deliveries(request.principal.owner, request.query),
  });
  app.route({
    method: 'POST',
    url: '/webhooks/:id/requeue',
    schema: {
      summary: 'Try a delivery again that was given up',
      params: idParams,
      response: { 200: requeuedView, ...refused },
    },
    handler: (request) => {
      const id = uuidOr('DELIVERY_NOT_FOUND', request.params.id);
      return runs.requeueDelivery(request.principal.owner, id);
    },
  });
}
