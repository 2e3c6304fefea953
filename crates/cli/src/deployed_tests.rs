//! The words that units, the compose file and the documents give to this command are ones that it
//! takes: an option that is renamed is renamed there, too.

use std::path::{Path, PathBuf};

use clap::{CommandFactory, Parser};

use crate::Cli;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// What clap objects to in a command line, if it does.
fn objection(words: &[String]) -> Option<String> {
    Cli::try_parse_from(words).err().map(|error| error.to_string())
}

fn judge(from: &str, words: &[String]) {
    if let Some(objection) = objection(words) {
        panic!("{from}: {}\n{objection}", words.join(" "));
    }
}

/// A line of a shell as words, up to what is not the command's: a comment, a pipe, `&`, `…`.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for letter in line.chars() {
        match letter {
            _ if quote == Some(letter) => quote = None,
            '\'' | '"' if quote.is_none() => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            ' ' if quote.is_none() => words.extend(word.take()),
            '|' | '&' | ';' | '>' | '<' | '…' if quote.is_none() => break,
            '#' if word.is_none() => break,
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

/// Our command's lines for shells in a document, without what stands before: a prompt, and
/// variables.
fn commands(text: &str) -> Vec<Vec<String>> {
    let is_before = |word: &String| word == "$" || word.starts_with(|c: char| c.is_uppercase());
    let text = text.replace("\\\n", " ");
    let is_shell = |block: &&str| block.starts_with("sh\n") || block.starts_with("console\n");
    let lines = text.split("```").filter(is_shell).flat_map(str::lines);
    let lines = lines.map(|line| words(line).into_iter().skip_while(is_before));
    let lines = lines.map(|words| words.map(|word| meant(&word)).collect());
    lines.filter(|words: &Vec<_>| words.first().is_some_and(|word| word == "remora")).collect()
}

/// What a reader puts in a word's place.
fn meant(word: &str) -> String {
    match word {
        "target/release/remora" => "remora".into(),
        "TOKEN" => "00112233445566778899aabbccddeeff".into(),
        _ => word.into(),
    }
}

/// The value of each line `NAME=value` of a file.
fn values<'t>(text: &'t str, name: &str) -> Vec<&'t str> {
    let value = |line: &'t str| line.strip_prefix(name)?.strip_prefix('=');
    text.lines().filter_map(value).collect()
}

/// The lists of words under `command:` in a compose file, as lines.
fn composed(text: &str) -> Vec<String> {
    let mut lines = text.lines().map(str::trim);
    let mut found = Vec::new();
    while lines.any(|line| line == "command:") {
        let words = lines.by_ref().map_while(|line| line.strip_prefix("- "));
        found.push(words.collect::<Vec<_>>().join(" "));
    }
    found
}

#[test]
fn words_that_are_none_of_ours_are_found_out() {
    let objection = |line| objection(&words(line));
    assert_eq!(objection("remora store serve --cluster orders --redis"), None);
    let said = objection("remora store serve --clutser orders").unwrap();
    assert!(said.contains("'--clutser'"), "{said}");
    assert!(objection("remora store serve --nodes many").is_some());
}

#[test]
fn lines_of_shells_are_read_as_words() {
    let text = concat!(
        "remora is\n```sh\n$ A=1 remora store scan N --where 'a < 9 # b' \\\n",
        "  --json | head # 7\nls &\n```"
    );
    let read = [["remora", "store", "scan", "N", "--where", "a < 9 # b", "--json"]];
    assert_eq!(commands(text), read);
}

#[test]
fn units_give_words_that_are_ours() {
    let unit = read("scripts/remora-store@.service");
    let given = values(&read("docs/cluster.md"), "REMORA_STORE_WORDS").concat();
    assert!(given.contains("--cluster"), "{given}");
    let cards = ["scripts/remora-nic.service", "scripts/remora-nic-user.service"];
    for path in ["scripts/remora-store@.service"].into_iter().chain(cards) {
        let started = values(&read(path), "ExecStart").concat();
        let line = started.replace("/usr/bin/remora", "remora");
        assert!(line.starts_with("remora "), "{path}: {line}");
        judge(path, &words(&line.replace("$REMORA_STORE_WORDS", &given)));
    }
    let directory = values(&unit, "StateDirectory").concat().replace("%i", "orders");
    judge(
        "a node with a directory",
        &words(&format!("remora store serve {given} --dir {directory}")),
    );
}

#[cfg(feature = "cluster")]
#[test]
fn a_node_that_is_to_end_has_time_to() {
    let seconds = |path: &str, name: &str| {
        let text = read(path);
        let at = text.find(name).unwrap_or_else(|| panic!("{path} does not say {name}"));
        let digits: String =
            text[at + name.len()..].chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u64>().unwrap()
    };
    let least = crate::store::cluster::node::HAND_OVER.as_secs();
    assert!(seconds("scripts/remora-store@.service", "TimeoutStopSec=") > least);
    assert!(seconds("scripts/cluster/compose.yaml", "stop_grace_period: ") > least);
}

#[test]
fn secrets_have_the_names_that_the_command_knows() {
    let command = Cli::command();
    let store = command.find_subcommand("store").unwrap();
    let help = store.find_subcommand("serve").unwrap().clone().render_long_help().to_string();
    for path in ["scripts/remora-store@.service", "scripts/cluster/compose.yaml"] {
        let text = read(path);
        let words = text.split(|letter: char| !(letter.is_ascii_uppercase() || letter == '_'));
        let mut names = words.filter(|word| word.starts_with("REMORA_")).collect::<Vec<_>>();
        // (The words stand there themselves, and the card's is no secret.)
        names.retain(|name| !["REMORA_STORE_WORDS", "REMORA_NIC"].contains(name));
        assert!(names.contains(&"REMORA_STORE_PASSWORD"), "{path}: {names:?}");
        names.iter().for_each(|name| assert!(help.contains(name), "{path}: {name}"));
    }
}

#[test]
fn the_compose_file_gives_words_that_are_ours() {
    let path = "scripts/cluster/compose.yaml";
    let lists = composed(&read(path));
    let ours: Vec<_> = lists.iter().filter(|line| line.starts_with("remora ")).collect();
    let [line] = ours[..] else { panic!("{path}: {lists:?}") };
    assert!(line.contains("--cluster="), "{line}");
    judge(path, &words(line));
}

#[test]
fn documents_give_words_that_are_ours() {
    let documents = std::fs::read_dir(root().join("docs")).unwrap();
    let names = documents.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let pages = names.filter(|name| name.ends_with(".md")).map(|name| format!("docs/{name}"));
    let mut judged = std::collections::BTreeSet::new();
    for path in pages.chain(["README.md".to_owned()]) {
        for words in commands(&read(&path)) {
            judge(&path, &words);
            judged.extend(words.get(1).cloned());
        }
    }
    let cli = Cli::command();
    let ours = cli.get_subcommands().filter(|command| !command.is_hide_set());
    // (The demo has a script.)
    let is_told = |name: &str| name == "demo" || judged.contains(name);
    let missing: Vec<_> = ours.map(|c| c.get_name()).filter(|name| !is_told(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
