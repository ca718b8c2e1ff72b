//! The reader on arbitrary text.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_text_makes_the_reader_panic(text in "[\\PC\\n\\t&*:{}\\[\\]#!|>'\"-]{0,80}") {
        read_text(&text);
    }

    #[test]
    fn no_value_of_a_known_key_makes_the_reader_panic(
        key in 0..keys::keys().len(),
        value in "(\\PC{0,30}|-?[0-9]{1,45}(\\.[0-9]{1,5})?(MiB|s|m|h)?|[\\[\\]{}0-9a-z, :.]{0,20})",
    ) {
        let name = &keys::keys()[key].name;
        let mut text = String::new();
        let parts: Vec<_> = name.split('.').collect();
        for (depth, part) in parts.iter().enumerate() {
            write!(text, "\n{}{part}:", "  ".repeat(depth)).unwrap();
        }
        read_text(&format!("{text} {value}\n"));
        let mut draft = Draft::new(&inputs_without_files());
        environment::apply(&[(environment::variable(name).into(), value.into())], &mut draft);
        check::finish(&mut draft);
    }
}

fn inputs_without_files() -> Inputs {
    Inputs {
        config_file: None,
        of_machine: None,
        home: None,
        current_dir: "/nonexistent".into(),
        env: Vec::new(),
        is_root: true,
    }
}

fn read_text(text: &str) {
    let mut draft = Draft::new(&inputs_without_files());
    file::apply_text(text, &Source::Default, &mut draft);
    check::finish(&mut draft);
    for fault in draft.faults {
        assert!(!fault.to_string().contains(char::is_control), "{fault}");
    }
}
