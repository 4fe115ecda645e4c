/** Arithmetic without eval: + - * / % ^, parentheses, decimal numbers. */

/** The expression is no arithmetic we understand. The message is safe to show. */
export class ExpressionError extends Error {
  override readonly name = 'ExpressionError';
}

const MAX_LENGTH = 1000;
const TOKEN = /\s*(?:(\d+(?:\.\d+)?(?:e[+-]?\d+)?)|([-+*/%^()]))/iy;

/** @throws ExpressionError */
export function calculate(expression: string): number {
  if (expression.length > MAX_LENGTH) throw new ExpressionError('The expression is too long.');
  const tokens = tokenize(expression);
  let position = 0;
  const peek = () => tokens[position];

  function sum(): number {
    let value = product();
    for (let operator = peek(); operator === '+' || operator === '-'; operator = peek()) {
      position += 1;
      const right = product();
      value = operator === '+' ? value + right : value - right;
    }
    return value;
  }

  function product(): number {
    let value = signed();
    for (let operator = peek(); operator === '*' || operator === '/' || operator === '%'; operator = peek()) {
      position += 1;
      const right = signed();
      if (operator === '*') value *= right;
      else value = operator === '/' ? value / right : value % right;
    }
    return value;
  }

  function signed(): number {
    const sign = peek();
    if (sign !== '-' && sign !== '+') return power();
    position += 1;
    return sign === '-' ? -signed() : signed();
  }

  function power(): number {
    const base = atom();
    if (peek() !== '^') return base;
    position += 1;
    return base ** signed();
  }

  function atom(): number {
    const token = peek();
    position += 1;
    if (typeof token === 'number') return token;
    if (token !== '(') throw new ExpressionError('A number is missing.');
    const value = sum();
    if (peek() !== ')') throw new ExpressionError('A closing parenthesis is missing.');
    position += 1;
    return value;
  }

  const value = sum();
  if (position < tokens.length) throw new ExpressionError('There is something after the end of the expression.');
  return value;
}

function tokenize(expression: string): (number | string)[] {
  const text = expression.trim();
  const tokens: (number | string)[] = [];
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < text.length) {
    const match = TOKEN.exec(text);
    if (match === null) throw new ExpressionError('Only numbers, + - * / % ^ and parentheses are understood.');
    tokens.push(match[1] === undefined ? String(match[2]) : Number(match[1]));
  }
  return tokens;
}
