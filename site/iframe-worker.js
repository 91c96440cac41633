// A browser starts no worker from file://. Runs its script, which is that of the
// site's search, in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.scope = frame.contentWindow;
      this.scope.postMessage = (data) =>
        this.dispatchEvent(new MessageEvent("message", {data}));
      this.scope.importScripts = (...urls) =>
        urls.reduce((done, next) => done.then(() => this.load(next)),
                    Promise.resolve());
      this.ready = this.load(url);
    }

    load(url) {
      return new Promise((loaded, failed) => {
        const script = this.scope.document.createElement("script");
        script.src = new URL(url, location.href).href;
        script.onload = loaded;
        script.onerror = failed;
        this.scope.document.head.append(script);
      });
    }

    postMessage(data) {
      this.ready.then(() => this.scope.dispatchEvent(
        new this.scope.MessageEvent("message", {data})));
    }

    terminate() {
      this.scope.frameElement.remove();
    }
  };
}
