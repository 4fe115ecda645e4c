/** Filters of a search as SQL conditions on the column `value`. */
import { RunledgerError } from '#src/errors.ts';
import type { Json, JsonObject } from '#src/events/event.ts';

const ORDERS: { [operator: string]: string } = { $gt: '>', $gte: '>=', $lt: '<', $lte: '<=' };

/**
 * Conditions to be joined by `and`; what they compare with is added to `values`, which they name by place.
 * @throws INVALID_REQUEST {path} for an operator that is none, or an order of what has none
 */
export function filterConditions(filter: { [key: string]: Json }, values: unknown[]): string[] {
  return Object.entries(filter).flatMap(([key, wanted]) => {
    values.push(key);
    const field = `value -> $${values.length}::text`;
    const operators = operatorsOf(wanted);
    if (operators === null) return [equals(field, wanted, values)];
    return operators.map(([operator, operand]) => condition(field, key, operator, operand, values));
  });
}

/** null: the value itself is what is wanted. */
function operatorsOf(wanted: Json): [string, Json][] | null {
  if (typeof wanted !== 'object' || wanted === null || Array.isArray(wanted)) return null;
  const entries = Object.entries(wanted as JsonObject);
  return entries.length > 0 && entries.every(([name]) => name.startsWith('$')) ? entries : null;
}

function condition(field: string, key: string, operator: string, operand: Json, values: unknown[]): string {
  if (operator === '$eq') return equals(field, operand, values);
  if (operator === '$ne') return `not coalesce(${equals(field, operand, values)}, false)`;
  const order = ORDERS[operator];
  const type = typeof operand;
  if (order === undefined || (type !== 'number' && type !== 'string')) {
    throw new RunledgerError('INVALID_REQUEST', 'The store knows no such filter.', {
      path: `filter.${key}.${operator}`,
    });
  }
  values.push(JSON.stringify(operand));
  // jsonb has an order of its own within one type; what is of another type is not in order with it.
  return `(jsonb_typeof(${field}) = '${type}' and ${field} ${order} $${values.length}::jsonb)`;
}

function equals(field: string, operand: Json, values: unknown[]): string {
  values.push(JSON.stringify(operand));
  return `${field} = $${values.length}::jsonb`;
}
