// What every EventSource is asked to tell, the browser's and those for Node alike.
export default function follow (source, names, tell) {
  const told = (name) => (event) => tell({ saw: 'event', event: name, data: event.data, id: event.lastEventId })
  source.onopen = () => tell({ saw: 'open' })
  source.onmessage = told('message')
  for (const name of names) source.addEventListener(name, told(name))
  // 2 is CLOSED: it does not come again by itself. One client closes only after it has told the error.
  source.onerror = (event) => setTimeout(() => {
    tell({ saw: source.readyState === 2 ? 'closed' : 'away', status: event.code ?? null })
  })
}
