//! What every program can be started with.

use std::collections::BTreeMap;

/// Returns the field of the first text that no program can receive, because it contains a NUL:
/// `command[0]`, `args[1]` or `env.NAME`. `None` if all of them can be passed.
pub fn field_with_nul(
    command: &[String],
    args: &[String],
    env: &BTreeMap<String, String>,
) -> Option<String> {
    let has_nul = |text: &String| text.contains('\0');
    let listed = |name: &str, list: &[String]| {
        list.iter().position(has_nul).map(|index| format!("{name}[{index}]"))
    };
    listed("command", command).or_else(|| listed("args", args)).or_else(|| {
        let variable = env.iter().find(|(name, value)| has_nul(name) || has_nul(value));
        variable.map(|(name, _)| format!("env.{}", name.escape_default()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_with_a_nul_is_named_by_its_field() {
        let list = |texts: &[&str]| texts.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let env = |name: &str, value: &str| [(name.to_owned(), value.to_owned())].into();
        let (good, bad) = (list(&["a", "b\n"]), list(&["a", "b\0c"]));
        assert_eq!(field_with_nul(&good, &good, &env("A", "\u{1}")), None);
        for (field, expected) in [
            (field_with_nul(&bad, &bad, &env("A", "\0")), "command[1]"),
            (field_with_nul(&good, &bad, &env("A", "\0")), "args[1]"),
            (field_with_nul(&good, &good, &env("A", "b\0c")), "env.A"),
            (field_with_nul(&good, &good, &env("A\0", "b")), "env.A\\u{0}"),
        ] {
            assert_eq!(field.as_deref(), Some(expected));
        }
    }
}
