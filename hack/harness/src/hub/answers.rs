//! The answers of the hub itself: descriptions of files, lists, and errors with their codes.

use std::fmt::Write as _;

use super::{
    HubState,
    repository::{Repository, git_id, sha256},
};
use crate::http_stub::{StubReply, StubRequest, ranged};

pub(super) fn answer(state: &mut HubState, request: &StubRequest) -> StubReply {
    if let Some((left, headers)) = &mut state.faults.rate_limited
        && *left > 0
    {
        *left -= 1;
        let limited = StubReply::status(429);
        return headers.iter().fold(limited, |reply, (name, value)| reply.with(name, value));
    }
    let path = request.path.trim_start_matches('/').to_owned();
    let parts: Vec<String> = path.split('/').map(decoded).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let id = match parts.as_slice() {
        ["api", "models" | "resolve-cache", organization, name, ..]
        | [organization, name, "resolve", ..] => format!("{organization}/{name}"),
        _ => return StubReply::status(404),
    };
    if let Some(renamed) =
        state.repositories.iter().find(|it| it.former_id.as_deref() == Some(&*id))
    {
        let target = request.path.replacen(&id, &renamed.id, 1);
        let query = if request.query.is_empty() { "" } else { "?" };
        return StubReply::status(307)
            .with("location", format!("{target}{query}{}", request.query));
    }
    let Some(repository) = state.repositories.iter().find(|it| it.id == id) else {
        return not_found(request);
    };
    if repository.private.as_ref().is_some_and(|token| !has_token(request, token)) {
        return not_found(request);
    }
    match parts.as_slice() {
        ["api", "models", _, _, "revision", revision] => description(repository, revision),
        ["api", "models", _, _, "tree", revision] => tree(state, repository, revision, request),
        ["api", "models", _, _, "refs"] => {
            let name = |name: &String| format!(r#"{{"name":"{name}","ref":"refs/heads/{name}"}}"#);
            let names: Vec<String> = repository.branches.keys().map(name).collect();
            StubReply::json(format!(r#"{{"branches":[{}],"tags":[]}}"#, names.join(",")))
        }
        [_, _, "resolve", revision, file @ ..] => {
            resolve(state, repository, revision, &file.join("/"), request)
        }
        ["api", "resolve-cache", _, _, commit, file @ ..] => {
            let files = repository.commits.get(*commit);
            let content = files.and_then(|files| files.get(&file.join("/")));
            let Some((content, _)) = content else { return error(404, "EntryNotFound") };
            let tag = format!("\"{}\"", git_id(content));
            ranged(request, content, &tag).with("x-repo-commit", commit)
        }
        _ => StubReply::status(404),
    }
}

fn not_found(request: &StubRequest) -> StubReply {
    // The public hub does not report to clients without rights whether a repository exists.
    let status = if request.header("authorization").is_some() { 404 } else { 401 };
    error(status, "RepoNotFound")
}

fn error(status: u16, code: &str) -> StubReply {
    StubReply::status(status).with("x-error-code", code).with("x-error-message", "refused")
}

fn has_token(request: &StubRequest, token: &str) -> bool {
    request.header("authorization") == Some(&format!("Bearer {token}"))
}

fn description(repository: &Repository, revision: &str) -> StubReply {
    let Some(commit) = repository.resolve(revision) else { return error(404, "RevisionNotFound") };
    let id = &repository.id;
    let siblings: Vec<String> = repository.commits[commit]
        .keys()
        .map(|path| format!(r#"{{"rfilename":"{path}"}}"#))
        .collect();
    StubReply::json(format!(
        r#"{{"id":"{id}","modelId":"{id}","sha":"{commit}","private":false,"tags":[],"downloads":0,"likes":0,"siblings":[{}]}}"#,
        siblings.join(",")
    ))
}

fn tree(
    state: &HubState,
    repository: &Repository,
    revision: &str,
    request: &StubRequest,
) -> StubReply {
    let parameters = || request.query.split('&').filter_map(|part| part.split_once('='));
    let Some(commit) = repository.resolve(revision) else { return error(404, "RevisionNotFound") };
    if !parameters().any(|(name, value)| name == "recursive" && value.eq_ignore_ascii_case("true"))
    {
        return StubReply::status(400);
    }
    let cursor = parameters().find_map(|(name, value)| (name == "cursor").then_some(value));
    let from: usize = cursor.map_or(0, |text| text.parse().unwrap_or(0));
    let mut entries = vec![r#"{"type":"directory","oid":"0","size":0,"path":"dir"}"#.to_owned()];
    for (path, (content, is_large)) in &repository.commits[commit] {
        let size = content.len();
        let mut entry = format!(r#"{{"type":"file","path":"{path}","size":{size}"#);
        if *is_large {
            let (oid, pointer) = (sha256(content), git_id(path.as_bytes()));
            write!(
                entry,
                r#","oid":"{pointer}","lfs":{{"oid":"{oid}","size":{size},"pointerSize":134}}}}"#
            )
            .unwrap();
        } else {
            write!(entry, r#","oid":"{}"}}"#, git_id(content)).unwrap();
        }
        entries.push(entry);
    }
    let end = (from + state.page).min(entries.len());
    let page = entries.get(from..end).unwrap_or_default().join(",");
    let reply = StubReply::json(format!("[{page}]"));
    if end == entries.len() {
        return reply;
    }
    let host = request.header("host").unwrap_or_default();
    let next = format!("http://{host}{}?recursive=true&cursor={end}", request.path);
    reply.with("link", format!("<{next}>; rel=\"next\""))
}

fn resolve(
    state: &HubState,
    repository: &Repository,
    revision: &str,
    path: &str,
    request: &StubRequest,
) -> StubReply {
    let Some(commit) = repository.resolve(revision) else { return error(404, "RevisionNotFound") };
    if repository.gated.as_ref().is_some_and(|token| !has_token(request, token)) {
        return error(
            if request.headers.contains_key("authorization") { 403 } else { 401 },
            "GatedRepo",
        );
    }
    let Some((content, is_large)) = repository.commits[commit].get(path) else {
        return error(404, "EntryNotFound").with("x-repo-commit", commit);
    };
    let size = content.len();
    if !is_large {
        let target = format!("/api/resolve-cache/{}/{commit}/{}", repository.id, path);
        return StubReply::status(307)
            .with("location", target.replace(' ', "%20"))
            .with("x-repo-commit", commit)
            .with("x-linked-size", size)
            .with("x-linked-etag", format!("\"{}\"", git_id(content)));
    }
    let digest = sha256(content);
    let target = format!("http://127.0.0.1:{}/files/{digest}?signature=valid", state.files_port);
    StubReply::status(302)
        .with("location", state.faults.redirect.clone().unwrap_or(target))
        .with("x-repo-commit", commit)
        .with("x-linked-size", size)
        .with("x-linked-etag", format!("\"{digest}\""))
}

fn decoded(part: &str) -> String {
    part.replace("%2F", "/").replace("%20", " ")
}
