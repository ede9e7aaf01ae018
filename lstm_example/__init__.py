"""What ``recompute_lstm.py`` is made of.

It uses the package as other programs do, and is not installed with it:

    arguments, argument_checks       the command line
    run, stop_signals                from a command line to an exit code, however the run ends
    training_run, plan_sweep         a run of one plan, and of several
    model_builder, backend_models    models of plans, and their compiled programs:
    graphcore_models, keras_models   by Graphcore's API on TensorFlow, and by Keras alone elsewhere
    training, callbacks, divergence  training, and what is done after each update
    execution_memory, poplar_report  what is measured
    run_record                       what is known of a run so far
    run_report, sweep_report,        what is reported: printed, drawn, shown while it goes on, and
    progress, event_log, json_file   written
    sequence_plans, plan_choice,     plans, and what fits a budget
    largest_batch, program_needs
    memory_check, output_checks      what is checked before training
    saves, save_names, save_state,   saves, and runs that go on from them
    save_removal, resumption
    network, sampling                the network as it is saved, and texts that it continues
    data                             what is learnt
    worker_processes                 several processes
"""
