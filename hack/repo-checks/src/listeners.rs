//! Finds servers that accept connections by themselves instead of by the shared loop, which limits
//! them and counts what it refuses.

use crate::{
    TextFile,
    source::{Source, without_tests},
};

/// The folder of the shared loop.
const LOOP: &str = "common/program/src/listen/";
/// What accepts connections of a listener. A TLS acceptor takes the connection as an argument.
const CALLS: [&str; 3] = [".accept()", "axum::serve(", ".incoming()"];

/// `file:line` of each call in code that is shipped.
pub fn own_loops(file: &TextFile) -> Vec<String> {
    let is_test = file.path.contains("/tests/")
        || file.path.ends_with("/tests.rs")
        || file.path.starts_with(LOOP);
    if is_test {
        return Vec::new();
    }
    let (code, _) = without_tests(&Source::new(&file.text).code());
    let calls = |line: &str| CALLS.iter().any(|call| line.contains(call));
    let lines = code.lines().zip(1..).filter(|(line, _)| calls(line));
    lines.map(|(_, number)| format!("{}:{number}", file.path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_of_a_listener_is_found_outside_tests() {
        let text = "async fn f() {\n    // listener.accept()\n    let x = tls.accept(stream);\n    \
            let (stream, _) = listener.accept().await?;\n    axum::serve(listener, router).await;\n\
            }\n#[cfg(test)]\nmod tests {\n    fn g() { listener.accept(); }\n}\n";
        let loops_of =
            |path: &str| own_loops(&TextFile { path: path.to_owned(), text: text.to_owned() });
        assert_eq!(loops_of("edge/src/a.rs"), ["edge/src/a.rs:4", "edge/src/a.rs:5"]);
        for path in ["edge/tests/a.rs", "edge/src/b/tests.rs", "common/program/src/listen/a.rs"] {
            assert_eq!(loops_of(path), [""; 0], "{path}");
        }
    }
}
