//! Writes the kubeconfig that clients of a devcluster use.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use serde_json::json;

/// The text of a kubeconfig with one context. It is JSON, which every reader of YAML reads.
fn text(address: SocketAddr, context: &str) -> String {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": context, "preferences": {},
        "clusters": [{"name": context, "cluster": {"server": format!("http://{address}")}}],
        "users": [{"name": context, "user": {}}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": context, "namespace": "default"}}],
    });
    format!("{config:#}\n")
}

/// Replaces the file as a whole, so that nobody reads half of it.
pub fn write(path: &Path, address: SocketAddr, context: &str) -> io::Result<()> {
    let directory =
        path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(directory)?;
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a file name"))?;
    let fresh = directory.join(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    fs::write(&fresh, text(address, context))?;
    fs::rename(&fresh, path)
}
