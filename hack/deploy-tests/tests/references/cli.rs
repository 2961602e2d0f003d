//! The command lines of all programs as a page: the help of each command, as the program prints it.

use std::{fmt::Write as _, process::Command};

use neptune_harness::workspace::program;

/// The programs with their purpose, in the order of the page.
const PROGRAMS: [(&str, &str); 4] = [
    ("neptune-cloud", "the controller, and the plugin of kubectl"),
    ("neptune-edge", "the agent of a node"),
    ("neptune-gateway", "the gateway between clients and model servers"),
    ("neptune-aggregator", "the aggregator of a training"),
];

/// The page: a section per program, with one per command.
pub fn page() -> String {
    let mut page = String::from(
        "# Command lines\n\n\
         The help of each command, as `--help` prints it. Each option is also an environment variable, whose name is in\n\
         brackets; agents read them from `/etc/neptune/edge.env`.\n\n| Program | Purpose |\n|---|---|\n",
    );
    for (name, purpose) in PROGRAMS {
        writeln!(page, "| [{name}](#{name}) | {purpose} |").unwrap();
    }
    for (name, _) in PROGRAMS {
        command(&mut page, name, &[], 2);
    }
    page
}

/// Appends a command and its subcommands.
fn command(page: &mut String, name: &str, path: &[&str], level: usize) {
    let help = help(name, path);
    let heading = [&[name], path].concat().join(" ");
    write!(page, "\n{} {heading}\n\n```text\n{help}\n```\n", "#".repeat(level)).unwrap();
    for subcommand in subcommands(&help) {
        command(page, name, &[path, &[subcommand]].concat(), (level + 1).min(4));
    }
}

/// What a command prints with `--help`, without spaces at the ends of lines. Variables of the
/// environment, whose values it would contain, are not passed on.
fn help(name: &str, path: &[&str]) -> String {
    let mut command = Command::new(program(name));
    let output = command.args(path).arg("--help").env_clear().output().unwrap();
    assert!(output.status.success(), "{name} {path:?}: {output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.trim_end().lines().map(str::trim_end).collect();
    lines.join("\n")
}

/// The names in the section `Commands` of a help text.
fn subcommands(help: &str) -> Vec<&str> {
    let section = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let entries = section.take_while(|line| line.is_empty() || line.starts_with("  "));
    let names = entries.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !name.is_empty() && *name != "help").collect()
}

#[test]
fn subcommands_are_those_of_the_section() {
    let help = "A program.\n\nUsage: a <COMMAND>\n\nCommands:\n  run     Run it\n          until it ends\n  \
                help    Print help\n\nOptions:\n  -h  Print help";
    assert_eq!(subcommands(help), ["run"]);
}
