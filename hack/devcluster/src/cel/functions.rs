//! The operators and functions that rules may use: what they yield of which types, and what they cost by themselves. Pure.
//!
//! Those of Kubernetes 1.25 that are about texts, lists, patterns and addresses; `kube-cel` and `cel` evaluate them.

use super::estimate::{no_overload, not_here};
use super::shape::{Kind, Shape, UNKNOWN};

/// The result and the cost of a call, without those of its arguments.
///
/// # Errors
/// When nothing of that name takes these types.
pub fn call(
    name: &str,
    target: Option<&Shape>,
    arguments: &[&Shape],
) -> Result<(Shape, u64), String> {
    let found = match (target, arguments) {
        (None, [one]) => of_one(name, one),
        (None, [one, two]) => operator(name, one, two),
        (Some(target), arguments) => match &target.kind {
            Kind::String => of_text(name, target, arguments),
            Kind::List(items) => of_list(name, target, items, arguments),
            Kind::Map(_) if name == "size" && arguments.is_empty() => Some((int(), 1)),
            Kind::Url if arguments.is_empty() => of_url(name),
            _ => None,
        },
        _ => None,
    };
    found.ok_or_else(|| {
        if KNOWN.contains(&name) || name.starts_with(['_', '!', '-', '@']) {
            no_overload(name, target, arguments)
        } else {
            not_here(&format!("the function '{name}'"))
        }
    })
}

const KNOWN: &[&str] = &[
    "size",
    "string",
    "int",
    "double",
    "isURL",
    "url",
    "matches",
    "find",
    "findAll",
    "contains",
    "startsWith",
    "endsWith",
    "lowerAscii",
    "upperAscii",
    "trim",
    "charAt",
    "substring",
    "replace",
    "split",
    "indexOf",
    "lastIndexOf",
    "join",
    "isSorted",
    "sum",
    "min",
    "max",
    "getScheme",
    "getHost",
    "getHostname",
    "getPort",
    "getEscapedPath",
];

fn bool() -> Shape {
    Shape::scalar(Kind::Bool)
}

fn int() -> Shape {
    Shape::scalar(Kind::Int)
}

/// A tenth of the bytes, rounded up.
fn tenth(bytes: u64) -> u64 {
    if bytes == UNKNOWN { UNKNOWN } else { bytes.div_ceil(10) }
}

fn quarter(bytes: u64) -> u64 {
    if bytes == UNKNOWN { UNKNOWN } else { bytes.div_ceil(4) }
}

fn is_text(shape: &Shape) -> bool {
    matches!(shape.kind, Kind::String | Kind::Any)
}

fn is_number(shape: &Shape) -> bool {
    matches!(shape.kind, Kind::Int | Kind::Double | Kind::Any)
}

fn of_one(name: &str, one: &Shape) -> Option<(Shape, u64)> {
    Some(match (name, &one.kind) {
        ("!_" | "@not_strictly_false", Kind::Bool | Kind::Any) => (bool(), 1),
        ("-_", Kind::Int | Kind::Double) => (one.clone(), 1),
        ("size", Kind::String | Kind::List(_) | Kind::Map(_) | Kind::Any)
        | ("int", Kind::Int | Kind::Double | Kind::String | Kind::Any) => (int(), 1),
        ("string", Kind::Int | Kind::Double | Kind::Bool | Kind::String | Kind::Any) => {
            (Shape::string(UNKNOWN), 1)
        }
        ("double", Kind::Int | Kind::Double | Kind::String | Kind::Any) => {
            (Shape::scalar(Kind::Double), 1)
        }
        ("isURL", Kind::String) => (bool(), tenth(one.size)),
        ("url", Kind::String) => (Shape { kind: Kind::Url, size: one.size }, tenth(one.size)),
        _ => return None,
    })
}

fn operator(name: &str, one: &Shape, two: &Shape) -> Option<(Shape, u64)> {
    let common = one.join(two);
    match name {
        // A call costs nothing but its arguments.
        "_&&_" | "_||_" => {
            let fits = |side: &Shape| matches!(side.kind, Kind::Bool | Kind::Any);
            (fits(one) && fits(two)).then(|| (bool(), 0))
        }
        "_==_" | "_!=_" => common.map(|_| (bool(), tenth(one.whole().min(two.whole())))),
        "_<_" | "_<=_" | "_>_" | "_>=_" => {
            let comparable = is_number(one) && is_number(two) || is_text(one) && is_text(two);
            comparable.then(|| (bool(), tenth(one.size.min(two.size))))
        }
        "_+_" => {
            let common = common?;
            let size = one.size.saturating_add(two.size);
            match common.kind {
                Kind::Int | Kind::Double | Kind::Any => Some((common, 1)),
                Kind::String => Some((Shape::string(size), tenth(size))),
                Kind::List(_) => Some((Shape { size, ..common }, 1)),
                _ => None,
            }
        }
        "_-_" | "_*_" | "_/_" | "_%_" => common.filter(is_number).map(|common| (common, 1)),
        "_[_]" => match (&one.kind, &two.kind) {
            (Kind::List(items), Kind::Int) => Some(((**items).clone(), 1)),
            (Kind::Map(values), Kind::String) => Some(((**values).clone(), 1)),
            _ => None,
        },
        "@in" => match (&two.kind, &one.kind) {
            (Kind::List(items), _) => {
                let part = tenth(items.whole().min(one.whole())).max(1);
                items.join(one).map(|_| (bool(), two.size.saturating_mul(part)))
            }
            (Kind::Map(_), Kind::String) => Some((bool(), 1)),
            _ => None,
        },
        _ => None,
    }
}

fn of_text(name: &str, target: &Shape, arguments: &[&Shape]) -> Option<(Shape, u64)> {
    let read = tenth(target.size);
    let same = Shape::string(target.size);
    let texts = arguments.iter().all(|argument| is_text(argument));
    Some(match (name, arguments) {
        ("size", []) => (int(), 1),
        ("lowerAscii" | "upperAscii" | "trim", []) => (same, read),
        ("charAt", [at]) if at.kind == Kind::Int => (Shape::string(4), read),
        ("substring", [from, to @ ..])
            if to.len() < 2 && is_number(from) && to.iter().all(|to| is_number(to)) =>
        {
            (same, read)
        }
        ("startsWith" | "endsWith", [part]) if texts => (bool(), tenth(part.size)),
        ("contains", [part]) if texts => (bool(), read.saturating_mul(tenth(part.size))),
        ("indexOf" | "lastIndexOf", [part]) if texts => {
            (int(), read.saturating_mul(tenth(part.size)))
        }
        ("matches", [pattern]) if texts => (bool(), by_pattern(target, pattern)),
        ("find", [pattern]) if texts => (same, by_pattern(target, pattern)),
        ("findAll", [pattern]) if texts => {
            (Shape::list(same, target.size), by_pattern(target, pattern))
        }
        ("replace", [_, with]) if texts => {
            let size = target.size.saturating_mul(with.size.max(1)).saturating_add(with.size);
            (Shape::string(size), read.saturating_add(tenth(size)))
        }
        ("split", [_]) if texts => (Shape::list(same, target.size), read),
        _ => return None,
    })
}

fn by_pattern(target: &Shape, pattern: &Shape) -> u64 {
    tenth(target.size.saturating_add(1)).saturating_mul(quarter(pattern.size))
}

fn of_list(
    name: &str,
    target: &Shape,
    items: &Shape,
    arguments: &[&Shape],
) -> Option<(Shape, u64)> {
    let read = tenth(target.whole()).max(target.size);
    Some(match (name, arguments) {
        ("size", []) => (int(), 1),
        ("isSorted", []) => (bool(), read),
        ("sum" | "min" | "max", []) => (items.clone(), read),
        ("indexOf" | "lastIndexOf", [_]) => (int(), read),
        ("join", []) if is_text(items) => (Shape::string(target.whole()), read),
        ("join", [between]) if is_text(items) && is_text(between) => {
            let size = target.size.saturating_mul(items.size.saturating_add(between.size));
            (Shape::string(size), tenth(size))
        }
        _ => return None,
    })
}

fn of_url(name: &str) -> Option<(Shape, u64)> {
    let known =
        ["getScheme", "getHost", "getHostname", "getPort", "getEscapedPath"].contains(&name);
    known.then(|| (Shape::string(UNKNOWN), 1))
}

#[cfg(test)]
mod tests {
    use kube_cel::cel::Value as CelValue;

    use super::super::estimate::{Scope, estimate};
    use super::super::{compile, execute};
    use super::*;

    /// One true expression of each function.
    const EXAMPLES: &[&str] = &[
        "'abc'.size() == 3 && size([1]) == 1",
        "string(1) == '1'",
        "int('7') == 7",
        "double(1) == 1.0",
        "isURL('http://a/b') && !isURL('a')",
        "url('https://a:1/b').getScheme() == 'https'",
        "url('https://a:1/b').getHost() == 'a:1'",
        "url('https://a:1/b').getHostname() == 'a'",
        "url('https://a:1/b').getPort() == '1'",
        "url('https://a:1/b').getEscapedPath() == '/b'",
        "'abc'.matches('^a') && !'abc'.matches('^b')",
        "'abc123'.find('[0-9]+') == '123'",
        "'a1b2'.findAll('[0-9]') == ['1', '2']",
        "'abc'.contains('b')",
        "'abc'.startsWith('a') && 'abc'.endsWith('c')",
        "'ABc'.lowerAscii() == 'abc' && 'ABc'.upperAscii() == 'ABC'",
        "' a '.trim() == 'a'",
        "'abc'.charAt(1) == 'b'",
        "'abc'.substring(1) == 'bc' && 'abc'.substring(1, 2) == 'b'",
        "'abab'.replace('b', 'c') == 'acac'",
        "'a,b'.split(',') == ['a', 'b']",
        "'abcb'.indexOf('b') == 1 && 'abcb'.lastIndexOf('b') == 3",
        "[1, 2, 1].indexOf(1) == 0 && [1, 2, 1].lastIndexOf(1) == 2",
        "['a', 'b'].join('-') == 'a-b' && ['a', 'b'].join() == 'ab'",
        "[1, 2].isSorted() && ![2, 1].isSorted()",
        "[1, 2].sum() == 3 && [1, 2].min() == 1 && [1, 2].max() == 2",
        "1 in [1, 2] && 'a' in {'a': 1} && {'a': true}['a'] && -1 < 0 && 7 % 2 + 6 / 2 * 2 - 1 == 6",
        "[1, 2].exists_one(x, x > 1) && [1, 2].filter(x, x > 1).map(x, x + 1) == [3] && ![1].all(x, x > 1)",
        "true || 1 / 0 == 1",
    ];

    #[test]
    fn every_function_that_rules_may_use_is_evaluated() {
        let scope = Scope::of(&Shape { kind: Kind::Any, size: 0 });
        for example in EXAMPLES {
            let program = compile(example).expect(example);
            let estimate = estimate(program.expression(), &scope).expect(example);
            assert_eq!(estimate.shape.kind, Kind::Bool, "{example}");
            assert_eq!(
                execute(example, &CelValue::Null, None),
                Ok(CelValue::Bool(true)),
                "{example}"
            );
        }
        for name in KNOWN {
            assert!(EXAMPLES.iter().any(|example| example.contains(&format!("{name}("))), "{name}");
        }
    }
}
