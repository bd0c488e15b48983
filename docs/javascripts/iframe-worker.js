// Search runs in a worker. Browsers refuse workers to pages that are read from a disk, so there a hidden frame does its work.
// The name is what the site's builder looks for; without this file it would load such a script from the network.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(address) {
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.documentElement.append(this.frame);
      const inside = this.frame.contentWindow, page = this.frame.contentDocument;
      page.open();
      page.write("<!doctype html><title>search</title>");
      page.close();
      inside.postMessage = data => setTimeout(() => this.onmessage?.({ data: structuredClone(data) }));
      const script = page.createElement("script");
      script.src = new URL(address, location.href);
      script.onload = () => { for (const data of this.waiting) inside.onmessage({ data }); this.waiting = null; };
      script.onerror = () => this.onerror?.({ preventDefault() {} });
      page.documentElement.append(script);
    }
    postMessage(message) {
      const data = structuredClone(message);  // either side may change what it was sent
      if (this.waiting) this.waiting.push(data);
      else this.frame.contentWindow.onmessage({ data });
    }
    terminate() { this.frame.remove(); }
  };
}
