/* A browser starts no worker for a page that is opened from a folder. There, a hidden frame runs the script of the search instead. */
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(script) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.answer = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.frame.srcdoc = `<script>postMessage = frameElement.answer</script><script src="${script}"></script>`
      this.loaded = new Promise(done => this.frame.addEventListener("load", done))
      document.body.append(this.frame)
    }

    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
