/* Adds the headers with which a browser allows threads in WebAssembly. Hosts of static files do not send them. */
addEventListener("install", () => skipWaiting());
addEventListener("activate", (event) => event.waitUntil(clients.claim()));
addEventListener("fetch", (event) => {
  if (new URL(event.request.url).origin !== location.origin) return;
  event.respondWith(
    fetch(event.request).then(({ body, status, statusText, headers: received }) => {
      const headers = new Headers(received);
      headers.set("Cross-Origin-Opener-Policy", "same-origin");
      headers.set("Cross-Origin-Embedder-Policy", "require-corp");
      return new Response(body, { status, statusText, headers });
    }),
  );
});
