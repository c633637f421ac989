// What the pages at / and /judge share: requests with the server's token, and texts.
// Texts are set by textContent alone, so what a passage holds is never read as HTML.
"use strict";

const at = (id) => document.getElementById(id);

function made(tag, text = "", className = "") {
  const node = document.createElement(tag);
  node.textContent = text;
  node.className = className;
  return node;
}

function say(words, wrong = false) {
  at("status").textContent = words;
  at("status").classList.toggle("wrong", wrong);
}

async function call(path, body) {
  const headers = { "Content-Type": "application/json" };
  const token = sessionStorage.getItem("token");
  if (token) headers.Authorization = `Bearer ${token}`;
  const options = body ? { method: "POST", headers, body: JSON.stringify(body) } : { headers };
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Error("the server cannot be reached");
  }
  if (answer.status === 401) {
    sessionStorage.removeItem("token");
    at("login").hidden = false;
    at("token").focus();
  }
  const found = await answer.json().catch(() => ({ detail: `the answer is ${answer.status} without JSON` }));
  if (!answer.ok) throw new Error(found.detail);
  return found;
}

at("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", at("token").value);
  at("token").value = "";
  at("login").hidden = true;
  say("");
  start();
});
