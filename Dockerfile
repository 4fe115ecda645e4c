FROM node:24-slim

WORKDIR /app
COPY package.json package-lock.json ./
RUN npm ci --omit=dev --no-audit --no-fund && npm cache clean --force
COPY . .

ENV NODE_ENV=production
USER node
EXPOSE 8123
# Not through npm: signals must reach the server, which drains on SIGTERM.
CMD ["node", "src/main.ts", "--host", "0.0.0.0"]
