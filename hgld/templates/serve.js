// Photos that are dropped, pasted or chosen are sent to the server, which answers with their matches as HTML.
const said = document.querySelector("[role=status]"), all = document.querySelector("#found"), input = document.querySelector("#photos");
const photos = new WeakMap(); // the photo of a section, to search it again within a class
const given = location.hash.slice(1); // the token; the tab stores it, so that reloading works
if (given) {
  sessionStorage.setItem("token", given);
  history.replaceState(null, "", location.pathname);
}
const search = async (photo, within, old) => {
  said.textContent = `Searching with ${photo.name} …`;
  const query = new URLSearchParams({ name: photo.name.slice(0, 200), ...within });
  const headers = { "X-Hgld-Token": sessionStorage.getItem("token") ?? "", "Content-Type": "application/octet-stream" };
  let text, isRight = false;
  try {
    const answer = await fetch(`/api/search?${query}`, { method: "POST", headers, body: photo });
    [text, isRight] = [await answer.text(), answer.ok];
  } catch {
    text = "hgld serve is not running. Start it again and open the address it prints.";
  }
  if (!isRight) {
    try { text = JSON.parse(text).error; } catch { /* the answer is plain text */ }
    said.textContent = `${photo.name}: ${text}`;
    return;
  }
  const made = new DOMParser().parseFromString(text, "text/html").querySelector(".matches");
  photos.set(made, photo);
  if (old) old.replaceWith(made);
  else all.prepend(made);
  said.textContent = `${photo.name}: found.`;
};
const searchAll = async (files) => { for (const photo of files) await search(photo, {}, null); };
all.addEventListener("within", (event) => {
  event.preventDefault();
  search(photos.get(event.target), event.detail, event.target);
});
input.addEventListener("change", () => { searchAll([...input.files]); });
document.addEventListener("paste", (event) => searchAll([...event.clipboardData.files]));
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  searchAll([...event.dataTransfer.files]);
});
