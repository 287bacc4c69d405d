// node driver.mjs eventsource|undici: follows streams as that package's EventSource does.
//
// A line of JSON in: {"open": name, "url", "token", "last_event_id", "names"} or {"close": name}.
// Lines of JSON out: {"ready": version}, then {"stream": name, "saw": "open" | "event" | "away" | "closed", …}.
import { createRequire } from 'node:module'
import { createInterface } from 'node:readline'
import follow from './follow.mjs'

const name = process.argv[2]
const packages = createRequire(import.meta.url)
const say = (line) => process.stdout.write(JSON.stringify(line) + '\n')

function own (asked) {
  const headers = {}
  if (asked.token) headers.authorization = `Bearer ${asked.token}`
  // The one that it names by itself when it comes again is the better one.
  if (asked.last_event_id !== null) headers['last-event-id'] = asked.last_event_id
  return headers
}

const openers = {
  // The package's own way to a header is its `fetch`.
  eventsource (asked) {
    const { EventSource } = packages('eventsource')
    const get = (url, init) => {
      const headers = new Headers(own(asked))
      for (const [key, value] of Object.entries(init.headers)) headers.set(key, value)
      return fetch(url, { ...init, headers })
    }
    return new EventSource(asked.url, { fetch: get })
  },
  // Here it is the dispatcher.
  undici (asked) {
    const { Agent, EventSource } = packages('undici')
    const added = own(asked)
    const withHeaders = (dispatch) => (options, handler) => {
      const headers = new Headers(added)
      for (const [key, value] of Object.entries(options.headers)) headers.set(key, value)
      return dispatch({ ...options, headers: Object.fromEntries(headers) }, handler)
    }
    return new EventSource(asked.url, { dispatcher: new Agent().compose(withHeaders) })
  }
}

const open = new Map()
say({ ready: `${packages(`${name}/package.json`).version} on Node ${process.versions.node}` })
for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line)
  if (asked.open) {
    const tell = (seen) => say({ stream: asked.open, ...seen })
    const source = openers[name](asked)
    open.set(asked.open, source)
    follow(source, asked.names, tell)
  } else {
    open.get(asked.close)?.close()
    open.delete(asked.close)
  }
}
process.exit(0)
