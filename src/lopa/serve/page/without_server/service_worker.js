/* Adds the headers with which a browser allows threads in WebAssembly. Hosts of static files do not send them. */
addEventListener("install", () => skipWaiting());
addEventListener("activate", (event) => event.waitUntil(clients.claim()));
addEventListener("fetch", (event) => {
  if (new URL(event.request.url).origin !== location.origin) return;
  event.respondWith(
    fetch(event.request).then((response) => {
      // The browser follows a redirect of a page itself. It has status 0 here, with which no response can be made.
      if (response.type === "opaqueredirect") return response;
      const { body, status, statusText } = response;
      const headers = new Headers(response.headers);
      headers.set("Cross-Origin-Opener-Policy", "same-origin");
      headers.set("Cross-Origin-Embedder-Policy", "require-corp");
      return new Response(body, { status, statusText, headers });
    }),
  );
});
